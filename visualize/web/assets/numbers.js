// Numbers in words.

export const written = (value) => value.toLocaleString("en");
export const counted = (count, noun) => `${written(count)} ${noun}${count === 1 ? "" : "s"}`;

// A number with three digits.
export const rounded = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 });

export function inBytes(bytes) {
  const [size, unit] = [[1e6, "MB"], [1e3, "kB"]].find(([least]) => bytes >= least) ?? [1, "bytes"];
  return `${rounded(bytes / size)} ${unit}`;
}
