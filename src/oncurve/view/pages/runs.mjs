export const x_runs = 1;
