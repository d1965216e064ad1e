// The play button of the player and of the replay.

export class Playback {
  // `begin()` draws the first frame. `advance(seconds)` draws the next one, and returns whether there are more. `show(place)`
  // draws another one, and `after(by)` is the place so many steps on. `rest()` follows when playback ends.
  constructor(root, label, steps) {
    Object.assign(this, steps, { label, button: root.querySelector(".play"), output: root.querySelector("output"), isPlaying: false });
    this.button.addEventListener("click", () => (this.isPlaying ? this.stop() : this.start()));
    const scrub = root.querySelector("input");
    scrub.addEventListener("input", () => this.pause(Number(scrub.value)));
    scrub.addEventListener("change", () => this.stop());
    for (const [name, by] of [[".back", -1], [".forward", 1]]) {
      root.querySelector(name).addEventListener("click", () => this.pause(this.after(by)).then(() => this.stop()));
    }
  }

  pause(place) {
    this.isPlaying = false;
    return this.show(place);
  }

  setPlaying(isPlaying) {
    this.isPlaying = isPlaying;
    this.button.textContent = isPlaying ? "❚❚ Pause" : `▶ ${this.label}`;
    this.output.setAttribute("aria-live", isPlaying ? "off" : "polite");
  }

  stop() {
    this.setPlaying(false);
    this.rest?.();
  }

  async start() {
    this.setPlaying(true);
    let last = performance.now(), hasMore = true;
    await this.begin();
    while (hasMore && this.isPlaying) {
      await new Promise(requestAnimationFrame);
      const time = performance.now();
      if (this.isPlaying) hasMore = await this.advance((time - last) / 1000);
      last = time;
    }
    if (this.isPlaying) this.stop();
  }
}
