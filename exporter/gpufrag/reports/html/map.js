"use strict";
// The memory map: segments follow one another in lines of equal width, as in a text. Only visible lines are drawn; a
// pixel that holds several blocks shows the colour with most bytes, and a match of the search before all others.

const STATES = {
  l: ["in use", "--active"],
  w: ["freed, waits for a stream", "--awaiting"],
  s: ["free, pinned between live blocks", "--stranded"],
  r: ["free, can be returned to the driver", "--reclaimable"],
  c: ["free in a private pool", "--captive"],
};
const FREE = "src";
const SIZES = [[1 << 12, "up to 4 KiB"], [1 << 16, "up to 64 KiB"], [1 << 20, "up to 1 MiB"], [10 << 20, "up to 10 MiB"],
  [64 << 20, "up to 64 MiB"], [512 << 20, "up to 512 MiB"], [Infinity, "larger"]];
const SIZE_COLOURS = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#fde725"]; // viridis
const STACK_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"]; // Okabe and Ito
const OTHER = "#8a9099";
const LINE = 18, BAR = 14, GAP = 2, LEAST_SCALE = 32, MOST_HEIGHT = 8e6, DIM = 0.22;

function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  while (Math.abs(size) >= 999.5 && power < units.length - 1) { size /= 1024; power++; }
  return (power ? size.toPrecision(3) : String(size)) + " " + units[power];
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

class MemoryMap {
  constructor(place, data) {
    this.data = data;
    this.flatten();
    this.selected = -1;
    this.matches = null;
    this.build(place);
    this.mode = "state";
    this.paint();
    new ResizeObserver(() => this.resize()).observe(this.scroller);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
    this.resize();
  }

  flatten() {
    const segments = this.data.segments;
    const count = segments.reduce((sum, segment) => sum + segment.sizes.length, 0);
    this.first = new Int32Array(segments.length + 1); // first block of each segment
    this.length = new Float64Array(segments.length); // bytes of each segment
    this.offset = new Float64Array(count); // of a block in its segment
    this.size = new Float64Array(count);
    this.stack = new Int32Array(count);
    this.state = "";
    const states = [];
    let block = 0;
    segments.forEach((segment, number) => {
      this.first[number] = block;
      let offset = 0;
      segment.sizes.forEach((size, index) => {
        this.offset[block] = offset;
        this.size[block] = size;
        this.stack[block] = segment.stacks[index];
        offset += size;
        block++;
      });
      this.length[number] = offset;
      states.push(segment.states);
    });
    this.first[segments.length] = block;
    this.state = states.join("");
    this.count = count;
    this.total = this.length.reduce((sum, size) => sum + size, 0);
  }

  build(place) {
    const button = (text, label, action) => {
      const made = element("button", { type: "button", "aria-label": label, title: label }, text);
      made.addEventListener("click", action);
      return made;
    };
    const colour = element("select", { "aria-label": "colour" });
    for (const mode of ["state", "size", "stack"]) colour.append(element("option", { value: mode }, "colour by " + mode));
    colour.addEventListener("change", () => { this.mode = colour.value; this.paint(); });
    this.search = element("input", { type: "search", placeholder: "stack or address (0x…)", "aria-label": "search" });
    this.search.addEventListener("input", () => this.find(this.search.value));
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") { this.find(this.search.value); this.nextMatch(event.shiftKey ? -1 : 1); event.preventDefault(); }
    });
    this.status = element("span", { role: "status" });
    const toolbar = element("div", { class: "toolbar" }, colour, this.search,
      button("‹", "previous match", () => this.nextMatch(-1)), button("›", "next match", () => this.nextMatch(1)),
      this.status,
      button("+", "zoom in", () => this.zoom(0.5)), button("−", "zoom out", () => this.zoom(2)),
      button("all", "show all", () => this.zoom(Infinity)));
    this.legend = element("ul", { class: "legend" });
    this.canvas = element("canvas");
    this.spacer = element("div");
    this.scroller = element("div", { class: "scroller", tabindex: "0", role: "application",
      "aria-label": "Memory map. Arrow keys select a block, page keys a segment, plus and minus zoom." }, this.canvas, this.spacer);
    this.details = element("div", { class: "details", "aria-live": "polite" });
    place.append(toolbar, this.legend, this.scroller, this.details);
    this.scroller.addEventListener("scroll", () => this.draw());
    this.scroller.addEventListener("mousemove", (event) => this.describe(this.at(event)));
    this.scroller.addEventListener("mouseleave", () => this.describe(this.selected));
    this.scroller.addEventListener("click", (event) => this.select(this.at(event), false));
    this.scroller.addEventListener("dblclick", (event) => this.fit(this.at(event)));
    this.scroller.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.at(event), event.offsetY);
    }, { passive: false });
    this.scroller.addEventListener("keydown", (event) => this.key(event));
    this.describe(-1);
  }

  // --- colours

  paint() {
    const style = getComputedStyle(document.documentElement);
    const own = (name) => style.getPropertyValue(name).trim();
    const free = own("--free");
    this.ground = own("--ground");
    this.text = own("--text");
    this.match = own("--match");
    const entries = [];
    this.colour = new Uint8Array(this.count);
    if (this.mode === "state") {
      const keys = Object.keys(STATES);
      keys.forEach((key) => entries.push([STATES[key][0], own(STATES[key][1])]));
      for (let block = 0; block < this.count; block++) this.colour[block] = keys.indexOf(this.state[block]);
    } else if (this.mode === "size") {
      SIZES.forEach(([, name], index) => entries.push([name, SIZE_COLOURS[index]]));
      entries.push(["free", free]);
      for (let block = 0; block < this.count; block++) {
        this.colour[block] = FREE.includes(this.state[block]) ? SIZES.length : SIZES.findIndex(([most]) => this.size[block] <= most);
      }
    } else {
      const totals = new Float64Array(this.data.stacks.length + 1);
      for (let block = 0; block < this.count; block++) if (!FREE.includes(this.state[block])) totals[this.stack[block] + 1] += this.size[block];
      const largest = [...totals.keys()].filter((number) => number > 0).sort((a, b) => totals[b] - totals[a]).slice(0, STACK_COLOURS.length);
      largest.forEach((number, index) => entries.push([this.frame(this.data.stacks[number - 1][0]), STACK_COLOURS[index]]));
      entries.push(["other or no stack", OTHER], ["free", free]);
      for (let block = 0; block < this.count; block++) {
        const place = largest.indexOf(this.stack[block] + 1);
        this.colour[block] = FREE.includes(this.state[block]) ? largest.length + 1 : place < 0 ? largest.length : place;
      }
    }
    this.palette = entries.map(([, colour]) => colour);
    const present = new Set(this.colour);
    this.legend.replaceChildren(...entries.filter((_, index) => present.has(index)).map(([name, colour]) => {
      const swatch = element("span", { class: "swatch" });
      swatch.style.background = colour;
      return element("li", {}, swatch, name);
    }));
    this.draw();
  }

  frame(number) {
    return shortFrame(this.data.frames[number]);
  }

  // --- layout: each segment begins at a whole pixel of one endless line, which is broken into lines of this.width

  resize() {
    const width = Math.max(100, this.scroller.clientWidth);
    if (width === this.width) return;
    const top = this.width ? this.blockAtTop() : 0;
    this.width = width;
    const lines = Math.max(1, Math.floor(this.scroller.clientHeight / LINE) - 1);
    this.widest = Math.max(1, this.total / Math.max(1, lines * width - (GAP + 1) * this.length.length));
    if (this.total / this.widest > 50 * lines * width) this.widest = this.total / (50 * lines * width);
    this.scale = Math.min(this.scale || this.widest, this.widest);
    this.lay();
    this.show(top, 0);
  }

  lay() {
    const finest = this.total / (MOST_HEIGHT / LINE * this.width);
    this.scale = Math.min(this.widest, Math.max(this.scale, LEAST_SCALE, finest));
    this.begin = new Float64Array(this.length.length + 1);
    let pixel = 0;
    this.length.forEach((size, number) => {
      this.begin[number] = pixel;
      pixel += Math.max(1, Math.round(size / this.scale)) + GAP;
    });
    this.begin[this.length.length] = pixel;
    this.space(this.canvas.clientHeight);
    this.draw();
  }

  /** Make the scroller as high as all lines; the canvas, which stays in view, takes `taken` of it. */
  space(taken) {
    const lines = Math.ceil(this.begin[this.length.length] / this.width);
    this.spacer.style.height = Math.max(0, lines * LINE - taken) + "px";
  }

  pixels(segment) {
    return this.begin[segment + 1] - this.begin[segment] - GAP;
  }

  segmentOf(block) {
    return last(this.first, this.first.length - 1, block);
  }

  pixelOf(block) {
    const segment = this.segmentOf(block);
    return this.begin[segment] + this.offset[block] / this.length[segment] * this.pixels(segment);
  }

  /** The block at a pixel of the endless line; -1 between segments. */
  blockAt(pixel) {
    if (pixel < 0 || pixel >= this.begin[this.length.length]) return -1;
    const segment = last(this.begin, this.begin.length - 1, pixel);
    const share = (pixel - this.begin[segment]) / this.pixels(segment);
    return share >= 1 ? -1 : this.blockIn(segment, share * this.length[segment]);
  }

  blockIn(segment, offset) {
    let low = this.first[segment], high = this.first[segment + 1] - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.offset[middle] <= offset) low = middle; else high = middle - 1;
    }
    return low;
  }

  at(event) {
    const box = this.scroller.getBoundingClientRect();
    const line = Math.floor((event.clientY - box.top - this.scroller.clientTop + this.scroller.scrollTop) / LINE);
    const x = event.clientX - box.left - this.scroller.clientLeft;
    return x >= this.width ? -1 : this.blockAt(line * this.width + Math.max(0, x));
  }

  blockAtTop() {
    return Math.max(0, this.blockAt(Math.floor(this.scroller.scrollTop / LINE) * this.width));
  }

  /** Scroll so that the block's line is `y` pixels below the top, or anywhere in view if y is undefined. */
  show(block, y) {
    if (block < 0 || !this.count) return;
    const top = Math.floor(this.pixelOf(block) / this.width) * LINE;
    const view = this.scroller;
    if (y !== undefined) view.scrollTop = top - y;
    else if (top < view.scrollTop || top + LINE > view.scrollTop + view.clientHeight) view.scrollTop = top - view.clientHeight / 2;
    this.draw();
  }

  zoom(factor, around = -1, y = 0) {
    if (around < 0) {
      around = this.selected >= 0 ? this.selected : this.blockAtTop();
      y = Math.floor(this.pixelOf(around) / this.width) * LINE - this.scroller.scrollTop;
      if (y < 0 || y > this.scroller.clientHeight) y = 0;
    } else {
      y = Math.floor(y / LINE) * LINE;
    }
    this.scale = Math.min(this.widest, this.scale * factor);
    this.lay();
    this.show(around, y);
  }

  fit(block) {
    if (block < 0) return;
    this.select(block, false);
    this.scale = this.size[block] / (this.width / 3);
    this.lay();
    this.show(block, this.scroller.clientHeight / 2);
  }

  // --- drawing

  draw() {
    if (this.width && !this.pending) this.pending = requestAnimationFrame(() => { this.pending = 0; this.drawNow(); });
  }

  drawNow() {
    const { canvas, scroller, width } = this, height = scroller.clientHeight, ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = width + "px";
      canvas.style.height = height + "px";
      this.space(height);
    }
    const context = this.context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = this.ground;
    context.fillRect(0, 0, width, height);
    const top = Math.floor(scroller.scrollTop / LINE);
    for (let line = top; (line - top) * LINE < height + LINE; line++) {
      this.drawLine(line * width, line * LINE - scroller.scrollTop);
    }
    if (this.selected >= 0) this.outline(this.selected);
  }

  drawLine(from, y) {
    const to = Math.min(from + this.width, this.begin[this.length.length]);
    if (from >= to) return;
    for (let segment = last(this.begin, this.begin.length - 1, from); segment < this.length.length && this.begin[segment] < to; segment++) {
      const end = Math.min(to, this.begin[segment] + this.pixels(segment));
      this.drawPart(segment, Math.max(from, this.begin[segment]), end, from, y);
    }
  }

  /** Draw the pixels `x` to `end` of a segment. */
  drawPart(segment, x, end, from, y) {
    const { begin, offset, size, colour, matches } = this, start = begin[segment];
    const scale = this.length[segment] / this.pixels(segment), after = this.first[segment + 1];
    let block = this.blockIn(segment, (x - start) * scale);
    let runColour = -1, runMatch = false, runStart = x;
    const flush = (upTo) => {
      if (runColour < 0 || upTo <= runStart) return;
      this.context.globalAlpha = matches && !runMatch ? DIM : 1;
      this.context.fillStyle = this.palette[runColour];
      this.context.fillRect(runStart - from, y, upTo - runStart, BAR);
      this.context.globalAlpha = 1;
    };
    const sums = new Float64Array(this.palette.length);
    while (x < end) {
      const blockEnd = start + (offset[block] + size[block]) / scale;
      let chosen = colour[block], match = matches !== null && matches[block] === 1, next, separate = false;
      if (blockEnd >= x + 1 || block + 1 >= after) {
        next = Math.min(end, Math.max(x + 1, block + 1 >= after ? end : Math.floor(blockEnd)));
        separate = next - x > 3 && start + offset[block] / scale >= x - 1;
      } else { // several blocks in this pixel
        sums.fill(0);
        const low = (x - start) * scale, high = low + scale;
        for (let each = block; each < after && offset[each] < high; each++) {
          sums[colour[each]] += Math.min(high, offset[each] + size[each]) - Math.max(low, offset[each]);
          if (matches !== null && matches[each] === 1 && !match) { match = true; chosen = colour[each]; }
        }
        if (!match) for (let each = 0; each < sums.length; each++) if (sums[each] > sums[chosen]) chosen = each;
        next = x + 1;
      }
      if (separate || chosen !== runColour || match !== runMatch) {
        flush(x);
        runColour = chosen;
        runMatch = match;
        runStart = separate && x > start ? x + 1 : x; // a line of the ground between blocks that are wide enough
      }
      x = next;
      while (block + 1 < after && start + (offset[block] + size[block]) / scale <= x) block++;
    }
    flush(end);
  }

  outline(block) {
    const segment = this.segmentOf(block), scale = this.length[segment] / this.pixels(segment);
    const from = this.pixelOf(block), to = Math.max(from + 3, from + this.size[block] / scale);
    this.context.strokeStyle = this.match;
    this.context.lineWidth = 2;
    const firstLine = Math.max(Math.floor(from / this.width), Math.floor(this.scroller.scrollTop / LINE));
    const lastLine = Math.min(Math.floor(to / this.width), firstLine + Math.ceil(this.scroller.clientHeight / LINE));
    for (let line = firstLine; line <= lastLine; line++) {
      const left = Math.max(0, from - line * this.width), right = Math.min(this.width, to - line * this.width);
      this.context.strokeRect(left, line * LINE - this.scroller.scrollTop - 1, Math.max(3, right - left), BAR + 2);
    }
  }

  // --- search

  find(text) {
    text = text.trim();
    this.matches = null;
    if (/^0x[0-9a-f]+$/i.test(text)) {
      const block = this.blockOfAddress(BigInt(text));
      this.status.textContent = block < 0 ? "no block has this address" : "";
      if (block >= 0) { this.matches = new Uint8Array(this.count); this.matches[block] = 1; this.select(block); }
    } else if (text) {
      const wanted = text.toLowerCase();
      const frames = this.data.frames.map((frame) => frame.toLowerCase().includes(wanted));
      const stacks = this.data.stacks.map((stack) => stack.some((frame) => frames[frame]));
      this.matches = new Uint8Array(this.count);
      let blocks = 0, size = 0;
      for (let block = 0; block < this.count; block++) {
        if (this.stack[block] >= 0 && stacks[this.stack[block]]) { this.matches[block] = 1; blocks++; size += this.size[block]; }
      }
      this.status.textContent = blocks ? `${blocks.toLocaleString("en")} blocks, ${bytes(size)}` : "no match";
    } else {
      this.status.textContent = "";
    }
    this.draw();
  }

  blockOfAddress(address) {
    for (let segment = 0; segment < this.length.length; segment++) {
      const offset = address - BigInt(this.data.segments[segment].address);
      if (offset >= 0n && offset < BigInt(this.length[segment])) return this.blockIn(segment, Number(offset));
    }
    return -1;
  }

  nextMatch(step) {
    if (!this.matches) return;
    for (let tried = 1; tried <= this.count; tried++) {
      const block = (((this.selected < 0 && step > 0 ? -1 : this.selected) + step * tried) % this.count + this.count) % this.count;
      if (this.matches[block]) { this.select(block); return; }
    }
  }

  /** Called by the report: search for a stack and go to its first block. */
  showStack(text) {
    this.search.value = text;
    this.selected = -1;
    this.find(text);
    this.nextMatch(1);
  }

  // --- selection

  select(block, scroll = true) {
    this.selected = block;
    this.describe(block);
    if (scroll) this.show(block);
    this.draw();
  }

  describe(block) {
    if (block < 0) {
      this.details.textContent = "Point at a block, or select one with the arrow keys. Double-click or Enter zooms to it, Ctrl and the wheel zoom.";
      return;
    }
    const number = this.segmentOf(block), segment = this.data.segments[number], index = block - this.first[number];
    const address = BigInt(segment.address) + BigInt(this.offset[block]);
    const lines = [`0x${address.toString(16)}: ${bytes(this.size[block])} ${STATES[this.state[block]][0]}` +
      (segment.unused[index] ? `, ${bytes(segment.unused[index])} of it not requested` : "") +
      (segment.pins[index] ? `, pins ${bytes(segment.pins[index])}` : "")];
    const kind = [segment.pool + " pool", "stream " + segment.stream];
    if (segment.private) kind.push("private pool " + segment.private);
    if (segment.expandable) kind.push("expandable");
    lines.push(`segment ${segment.address}: ${bytes(this.length[number])} in ${segment.sizes.length.toLocaleString("en")} blocks (${kind.join(", ")})`);
    if (this.stack[block] >= 0) lines.push(...this.data.stacks[this.stack[block]].map((frame) => this.data.frames[frame]));
    else if (!FREE.includes(this.state[block])) lines.push("no recorded stack");
    this.details.textContent = lines.join("\n");
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.count) return;
    const here = this.selected, none = here < 0;
    const line = (step) => this.blockAt(this.pixelOf(here) + step * this.width);
    const segment = (step) => this.first[Math.min(this.length.length - 1, Math.max(0, this.segmentOf(here) + step))];
    const moves = {
      ArrowRight: () => Math.min(this.count - 1, here + 1),
      ArrowLeft: () => Math.max(0, here - 1),
      ArrowDown: () => Math.max(line(1), here),
      ArrowUp: () => { const found = line(-1); return found < 0 ? here : found; },
      PageDown: () => segment(1),
      PageUp: () => segment(-1),
      Home: () => 0,
      End: () => this.count - 1,
    };
    const actions = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.zoom(Infinity),
      Enter: () => this.fit(here), Escape: () => this.select(-1),
    };
    if (moves[event.key]) this.select(none ? this.blockAtTop() : moves[event.key]());
    else if (actions[event.key]) actions[event.key]();
    else return;
    event.preventDefault();
  }
}

/** The last index below `count` whose value is at most `wanted`. */
function last(values, count, wanted) {
  let low = 0, high = count - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= wanted) low = middle; else high = middle - 1;
  }
  return low;
}

/** `dir/file.py:12 function` of a frame with a full path. */
function shortFrame(frame) {
  const parts = frame.split("/");
  return parts.length > 2 ? parts.slice(-2).join("/") : frame;
}
