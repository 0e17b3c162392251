export const x_tokens = 1;
