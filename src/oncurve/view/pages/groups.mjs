export const x_groups = 1;
