"use strict";
// Fills the report's places with charts: uPlot for timeline and free blocks, d3-flame-graph for stacks.

const own = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const POWERS = Array.from({ length: 62 }, (_, power) => 2 ** power); // steps of an axis in bytes
const FLAMES = { live: ["#56b4e9", "#9ad0f0"], stranded: ["#e69f00", "#f3c766"] }; // with black text on both

function withMarks(marks) {
  return (chart) => {
    const { ctx, bbox } = chart;
    ctx.save();
    for (const { at, name, colour, level } of marks) {
      const x = chart.valToPos(at, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = colour;
      ctx.lineWidth = 2 * devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.font = 12 * devicePixelRatio + "px system-ui";
      ctx.textAlign = x > bbox.left + bbox.width / 2 ? "right" : "left";
      ctx.fillText(" " + name + " ", x, bbox.top + (14 + 14 * level) * devicePixelRatio);
    }
    ctx.restore();
  };
}

function axes(name, value) {
  const line = { stroke: own("--line"), width: 1 };
  const common = { stroke: own("--text"), grid: line, ticks: line };
  return [{ ...common, label: name, values: (_, ticks) => ticks.map((tick) => Number.isInteger(tick) ? tick.toLocaleString("en") : "") },
    { ...common, size: 80, incrs: value === bytes ? POWERS : undefined, values: (_, ticks) => ticks.map(value) }];
}

/** Draw a chart again for another width or colour scheme. */
function keepDrawn(place, draw) {
  let chart = null, width = 0;
  const redraw = () => {
    if (chart) chart.destroy();
    width = place.clientWidth;
    if (width) chart = draw(width);
  };
  new ResizeObserver(() => { if (place.clientWidth !== width) redraw(); }).observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  redraw();
}

function drawTimeline(section, data) {
  section.hidden = false;
  const place = section.querySelector(".chart");
  const figure = (_, value) => value == null ? "–" : bytes(value);
  const line = (label, colour, more = {}) =>
    ({ label, stroke: own(colour), width: 2, spanGaps: true, points: { show: false }, value: figure, ...more });
  const marks = () => [
    { at: data.worst, name: "worst moment", colour: own("--worst"), level: 0 },
    ...(data.peak === data.worst ? [] : [{ at: data.peak, name: "peak", colour: own("--quiet"), level: 1 }]),
    ...data.ooms.map((at) => ({ at, name: "out of memory", colour: own("--bad"), level: 2 })),
  ];
  const events = { label: "events", value: (_, value) => value == null ? "–" : value.toLocaleString("en") };
  const common = (width, height) => ({ width, height, scales: { x: { time: false } }, cursor: { sync: { key: "events" + section.dataset.number } }, hooks: { draw: [withMarks(marks())] } });
  keepDrawn(place, (width) => {
    const reservable = data.reservable.some((value) => value !== null);
    const series = [events, line("reserved", "--reclaimable", { fill: own("--reclaimable") + "30" }), line("requested", "--active", { fill: own("--active") + "40" }),
      line("stranded", "--stranded", { dash: [6, 4] })];
    const columns = [data.events, data.reserved, data.requested, data.stranded];
    if (reservable) { series.push(line("reservable", "--good", { dash: [2, 3], show: false })); columns.push(data.reservable); }
    return new vendor.uPlot({ ...common(width, 280), axes: axes("events", bytes), series }, columns, place);
  });
  if (!data.ratio.some((value) => value !== null)) return;
  const ratio = section.querySelector(".ratio");
  ratio.hidden = false;
  keepDrawn(ratio, (width) => new vendor.uPlot({
    ...common(width, 140), axes: axes("events", (value) => String(value)),
    series: [events, line("fragmentation ratio", "--stranded", { value: (_, value) => value == null ? "–" : value.toFixed(2) })],
  }, [data.events, data.ratio], ratio));
}

function drawFree(section, rows) {
  const place = section.querySelector(".chart");
  const used = rows.map(([, count]) => count > 0);
  if (!used.includes(true)) { place.textContent = "No free blocks."; return; }
  const shown = rows.slice(used.indexOf(true), used.lastIndexOf(true) + 1);
  const name = (index) => shown[index] ? (shown[index][0] ? "≤ " + bytes(shown[index][0]) : "larger") : "";
  keepDrawn(place, (width) => {
    const [x, y] = axes("size of the free block", bytes);
    x.values = (_, ticks) => ticks.map((tick) => Number.isInteger(tick) ? name(tick) : "");
    x.incrs = [1, 2, 4];
    return new vendor.uPlot({
      width, height: 240, axes: [x, y],
      scales: { x: { time: false, range: [-0.6, shown.length - 0.4] }, y: { range: (_, low, high) => [0, high * 1.1] } },
      series: [
        { label: "size", value: (_, value) => value == null ? "–" : name(value) },
        { label: "bytes", fill: own("--reclaimable"), stroke: own("--reclaimable"), paths: vendor.uPlot.paths.bars({ size: [0.7] }), points: { show: false }, value: (_, value) => value == null ? "–" : bytes(value) },
        { label: "blocks", stroke: "transparent", scale: "count", points: { show: false }, value: (_, value) => value == null ? "–" : value.toLocaleString("en") },
      ],
    }, [shown.map((_, index) => index), shown.map(([, , size]) => size), shown.map(([, count]) => count)], place);
  });
}

function drawFlames(section, tree, map) {
  const place = section.querySelector(".flame"), colours = FLAMES[section.dataset.tree];
  if (!tree.children.length) { place.textContent = "None."; return; }
  const details = element("p", { class: "flame-details", "aria-live": "polite" });
  details.textContent = "Click a frame or press Enter to zoom, choose “all” to reset. Arrow keys move between frames; m shows the frame in the memory map.";
  place.after(details);
  const text = (node) => `${node.data.name}: ${bytes(node.data.value)} (${(100 * node.data.value / tree.value).toFixed(1)} %)`;
  keepDrawn(place, (width) => {
    place.replaceChildren();
    const chart = vendor.flamegraph().width(width).cellHeight(20).inverted(true).transitionDuration(0).minFrameSize(1)
      .getName((node) => shortFrame(node.data.name)).label(text)
      .setColorMapper((node) => colours[node.depth % 2]);
    vendor.select(place).datum(tree).call(chart);
    prepare(place);
    chart.onClick(() => prepare(place));
    return { destroy: () => chart.destroy() };
  });
  const frame = (event) => event.target.closest && event.target.closest("g.frame");
  const tell = (event) => { const found = frame(event); if (found) details.textContent = text(found.__data__); };
  place.addEventListener("mouseover", tell);
  place.addEventListener("focusin", tell);
  place.addEventListener("keydown", (event) => {
    const found = frame(event);
    if (!found) return;
    if (event.key === "Enter") found.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    else if (event.key === "m") map.showStack(found.__data__.data.name);
    else {
      const node = found.__data__, siblings = node.parent ? node.parent.children : [node], place = siblings.indexOf(node);
      const target = { ArrowUp: node.parent, ArrowDown: (node.children || [])[0], ArrowLeft: siblings[place - 1], ArrowRight: siblings[place + 1] }[event.key];
      if (!target) return;
      const shown = [...section.querySelectorAll("g.frame")].find((each) => each.__data__ === target);
      if (shown) shown.focus();
    }
    event.preventDefault();
  });
}

/** One frame is reached with Tab, the others with the arrow keys. */
function prepare(place) {
  place.querySelectorAll("g.frame").forEach((frame, index) => {
    frame.setAttribute("tabindex", index ? "-1" : "0");
    frame.setAttribute("role", "button");
    frame.setAttribute("aria-label", frame.__data__.data.name);
  });
}

JSON.parse(document.getElementById("data").textContent).forEach((data, number) => {
  const article = document.querySelectorAll("article")[number];
  const map = new MemoryMap(article.querySelector(".map .place"), data.map);
  article.querySelector(".timeline").dataset.number = number;
  if (data.timeline) drawTimeline(article.querySelector(".timeline"), data.timeline);
  for (const section of article.querySelectorAll(".flames")) drawFlames(section, data[section.dataset.tree], map);
  drawFree(article.querySelector(".free"), data.free);
  article.addEventListener("click", (event) => {
    if (!event.target.matches("button.show")) return;
    map.showStack(event.target.dataset.search);
    article.querySelector(".map").scrollIntoView();
  });
});
