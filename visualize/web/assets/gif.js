// Animated GIFs (GIF89a, see the W3C's copy of the specification). Our pictures have few colours: the 255 commonest are kept.
// LZW codes, and the colour index of unchanged pixels.
const CLEAR = 256, END = 257, UNCHANGED = 255;

// Colours of 5 bits per channel.
const packed = (pixel) => (pixel >> 3 & 31) << 10 | (pixel >> 11 & 31) << 5 | pixel >> 19 & 31;
const channels = (color) => [color >> 10, color >> 5 & 31, color & 31];

export class Gif {
  constructor() {
    // `counts`: colour → number of pixels.
    Object.assign(this, { frames: [], counts: new Uint32Array(1 << 15) });
  }

  add(canvas, milliseconds) {
    const { width, height } = canvas, image = canvas.getContext("2d").getImageData(0, 0, width, height);
    const colors = Uint16Array.from(new Uint32Array(image.data.buffer), packed);
    for (const color of colors) this.counts[color]++;
    this.frames.push({ colors, milliseconds });
    Object.assign(this, { width, height });
  }

  // The colours of the file, and the one that is nearest to each colour of the frames.
  palette() {
    const { counts } = this, used = [...counts.keys()].filter((color) => counts[color]);
    const kept = used.toSorted((a, b) => counts[b] - counts[a]).slice(0, UNCHANGED).map(channels), nearest = new Uint8Array(1 << 15);
    for (const color of used) {
      const parts = channels(color);
      const distances = kept.map((other) => Math.hypot(...other.map((part, i) => part - parts[i])));
      nearest[color] = distances.indexOf(Math.min(...distances));
    }
    return { table: kept.flat().map((part) => Math.round(part * 255 / 31)), nearest };
  }

  encode() {
    const { width, height, frames } = this, { table, nearest } = this.palette(), word = (value) => [value & 255, value >> 8];
    // All frames share a table of 256 colours.
    const parts = ["GIF89a", Uint8Array.of(...word(width), ...word(height), 0xf7, 0, 0)], colors = new Uint8Array(768);
    colors.set(table);
    // The animation repeats forever.
    parts.push(colors, Uint8Array.of(0x21, 0xff, 11), "NETSCAPE2.0", Uint8Array.of(3, 1, 0, 0, 0));
    frames.forEach((frame, i) => {
      const before = frames[i - 1]?.colors, pixels = frame.colors.map((color, at) => (before?.[at] === color ? UNCHANGED : nearest[color]));
      // Each frame is drawn over the one before.
      parts.push(Uint8Array.of(0x21, 0xf9, 4, 5, ...word(Math.round(frame.milliseconds / 10)), UNCHANGED, 0, 0x2c, 0, 0, 0, 0, ...word(width), ...word(height), 0, 8));
      const codes = compress(pixels);
      for (let at = 0; at < codes.length; at += 255) {
        const block = codes.slice(at, at + 255);
        parts.push(Uint8Array.of(block.length, ...block));
      }
      parts.push(Uint8Array.of(0));
    });
    return new Blob([...parts, Uint8Array.of(0x3b)]);
  }
}

// LZW, with codes of 9 to 12 bits.
function compress(pixels) {
  // (prefix, pixel) → code
  const codes = new Uint16Array(4096 * 256), bytes = [];
  let prefix = pixels[0], next = END + 1, size = 9, bits = 0, count = 0;
  const put = (code) => {
    bits |= code << count;
    for (count += size; count >= 8; count -= 8) {
      bytes.push(bits & 255);
      bits >>>= 8;
    }
  };
  put(CLEAR);
  for (let i = 1; i < pixels.length; i++) {
    const key = prefix << 8 | pixels[i];
    if (codes[key]) {
      prefix = codes[key];
      continue;
    }
    put(prefix);
    if (next === 4096) {
      put(CLEAR);
      codes.fill(0);
      next = END + 1;
      size = 9;
    } else {
      codes[key] = next;
      if (next++ === 1 << size) size++;
    }
    prefix = pixels[i];
  }
  put(prefix);
  put(END);
  bytes.push(bits & 255, 0);
  return bytes;
}
