// Numbers in words.

export const written = (value) => value.toLocaleString("en");
export const counted = (count, noun) => `${written(count)} ${noun}${count === 1 ? "" : "s"}`;

export function inBytes(bytes) {
  const [size, unit] = [[1e6, "MB"], [1e3, "kB"]].find(([least]) => bytes >= least) ?? [1, "bytes"];
  return `${(bytes / size).toLocaleString("en", { maximumSignificantDigits: 3 })} ${unit}`;
}
