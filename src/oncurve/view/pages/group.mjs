export const x_group = 1;
