// Numbers in words.

export const written = (value) => value.toLocaleString("en");
export const counted = (count, noun) => `${written(count)} ${noun}${count === 1 ? "" : "s"}`;
