export const x_findings = 1;
