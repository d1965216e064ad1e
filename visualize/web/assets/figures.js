// Inflates bytes using only microtasks: unlike with `new Response(stream)`, the browser draws no frame in between.

async function inflate(bytes) {
  const { readable, writable } = new DecompressionStream("deflate"), writer = writable.getWriter(), reader = readable.getReader();
  const chunks = [];
  writer.write(bytes);
  writer.close();
  for (let next = await reader.read(); !next.done; next = await reader.read()) chunks.push(next.value);
  const inflated = new Uint8Array(chunks.reduce((sum, { length }) => sum + length, 0));
  chunks.reduce((at, chunk) => (inflated.set(chunk, at), at + chunk.length), 0);
  return inflated;
}

const decode = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

export const inflateText = async (text) => new TextDecoder().decode(await inflate(decode(text)));

// Inflates a figure (see slots.py): the bytes of its arrays, as a number; the arrays, integers as differences; and its JSON.
export async function inflateFigure(text) {
  if (!text || text === "none") return { text };
  const { buffer } = await inflate(await inflate(decode(text)));
  const [size] = new Uint32Array(buffer, 0, 1), arrays = { i: Int32Array, u: Uint32Array, f: Float32Array };
  const nest = (flat, [length, ...rest]) => {
    const step = flat.length / length;
    return rest.length ? Array.from({ length }, (_, i) => nest(flat.subarray(i * step, (i + 1) * step), rest)) : flat;
  };
  const array = ({ first, kind, lag, shape }) => {
    const count = shape.reduce((product, n) => product * n), words = new Uint32Array(buffer, 4 + 4 * first, count);
    for (let i = lag || count; i < count; i++) words[i] += words[i - lag];
    return nest(new arrays[kind](buffer, words.byteOffset, count), shape);
  };
  const json = new TextDecoder().decode(new Uint8Array(buffer, 4 + size));
  return { text, ...JSON.parse(json, (_, value) => (value?.lag >= 0 ? array(value) : value)) };
}
