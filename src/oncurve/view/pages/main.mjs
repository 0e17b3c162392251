export const x_main = 1;
