"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const OPS = ["", "F", "B", "SA", "RA", "SG", "RG", "REDUCE", "STEP", "I", "W", "NORM", "EVAL"];
  const WORDS = {
    F: "forward", B: "backward", SA: "send activation", RA: "receive activation", SG: "send gradient",
    RG: "receive gradient", REDUCE: "reduce gradients", STEP: "update weights",
  };
  const CLASSES = ["R", "S", "REDUCE", "NORM", "STEP", "W", "I", "B", "F"];
  const STRIDE = 7;
  const data = JSON.parse(document.getElementById("run-data").textContent);
  const tip = document.getElementById("tip");

  const make = (name, attributes, text) => {
    const node = document.createElementNS(SVG, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const seconds = (value) => {
    const size = Math.abs(value);
    const [unit, scale] = size >= 1 ? ["s", 1] : size >= 1e-3 ? ["ms", 1e3] : ["us", 1e6];
    const shown = value * scale;
    return `${shown.toFixed(Math.abs(shown) < 10 ? 2 : Math.abs(shown) < 100 ? 1 : 0)} ${unit}`;
  };
  const showTip = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18}px`;
  };
  const hideTip = () => { tip.hidden = true; };

  for (const curve of data.curves) {
    const svg = document.getElementById(curve.id);
    if (!svg || !curve.points.length) continue;
    const cursor = svg.querySelector(".cursor");
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      const wanted = curve.low + ((at - curve.left) / (curve.right - curve.left)) * (curve.high - curve.low);
      let best = curve.points[0];
      for (const point of curve.points) if (Math.abs(point[0] - wanted) < Math.abs(best[0] - wanted)) best = point;
      const x = curve.left + ((best[0] - curve.low) / (curve.high - curve.low)) * (curve.right - curve.left);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.style.visibility = "visible";
      showTip(`step ${best[0]}: ${best[1]} ${curve.unit}`.trim(), event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", () => { cursor.style.visibility = "hidden"; hideTip(); });
  }

  const place = document.getElementById("timeline");
  if (!place) return;
  const { tick_s: TICK, lanes, pipelines } = data.timeline;
  const charts = data.timeline.charts;
  const end = Math.max(1, ...charts.map((chart) => chart.stop));
  const many = lanes.length > 10;
  const height = lanes.length > 24 ? 13 : many ? 19 : 32;
  const gap = many ? 3 : 5;
  const laneText = (lane) => (many ? [`${lane.title}  ${lane.detail}`] : [lane.title, lane.detail]);
  const longest = Math.max(12, ...lanes.flatMap(laneText).map((text) => text.length));
  const digits = String(Math.max(0, ...charts.flatMap((chart) => chart.lanes).map((spans) => {
    let most = 0;
    for (let i = 3; i < spans.length; i += STRIDE) most = Math.max(most, spans[i]);
    return most;
  }))).length;
  const TITLE = 24, AXIS = 24, GUTTER = 46;
  let left = 170, from = 0, to = end, drawn = null;

  const actionText = (op, pipeline, stage, microbatch) =>
    op === "STEP" ? "STEP" : op === "REDUCE" ? `REDUCE${stage}` : `${pipelines[pipeline] ?? "p" + pipeline}.${stage}.${op}${microbatch}`;
  const chartHeight = TITLE + lanes.length * (height + gap);
  const scale = (width) => (width - left - GUTTER) / (to - from);

  function heading(chart) {
    const other = charts.find((one) => one.kind === "predicted");
    const share = other && chart.kind === "measured" ? chart.stop / other.stop - 1 : null;
    const error = share === null ? "" : `, ${share < 0 ? "" : "+"}${(share * 100).toFixed(1)} % against the prediction`;
    return `${chart.title[0].toUpperCase()}${chart.title.slice(1)}: ${seconds(chart.stop * TICK)}${error}`;
  }

  function draw() {
    const width = Math.max(420, place.clientWidth);
    left = width < 640 ? 84 : Math.min(280, 16 + 6.3 * longest);
    const total = charts.length * (chartHeight + 10) + AXIS;
    const svg = make("svg", { viewBox: `0 0 ${width} ${total}`, height: total });
    const perTick = scale(width);
    const clip = make("clipPath", { id: "plot" });
    clip.append(make("rect", { x: left, y: 0, width: width - left - GUTTER, height: total }));
    svg.append(clip);
    const grid = make("g", {});
    svg.append(grid);
    charts.forEach((chart, number) => {
      const top = number * (chartHeight + 10);
      svg.append(make("text", { x: 0, y: top + 14, class: "title" }, heading(chart)));
      const plot = make("g", { "clip-path": "url(#plot)" });
      lanes.forEach((lane, index) => {
        const y = top + TITLE + index * (height + gap);
        svg.append(make("rect", { x: left, y, width: width - left - GUTTER, height, class: "lane" }));
        laneLabel(svg, lane, y);
        const share = chart.bubble[index];
        if (share !== null && share !== undefined) {
          svg.append(make("text", { x: width, y: y + height / 2, dy: "0.35em", class: "end" }, `${Math.round(share * 100)} %`));
        }
        drawLane(plot, chart.lanes[index], y, perTick);
      });
      svg.append(plot);
    });
    axis(grid, width, total, perTick);
    const old = place.querySelector("svg");
    if (old) old.replaceWith(svg); else place.append(svg);
    drawn = { svg, width, total };
  }

  function laneLabel(svg, lane, y) {
    const wide = left > 100;
    if (height >= 30 && wide) {
      svg.append(make("text", { x: 0, y: y + 13, class: "name" }, cut(lane.title)));
      svg.append(make("text", { x: 0, y: y + 27 }, cut(lane.detail)));
    } else {
      svg.append(make("text", { x: 0, y: y + height / 2, dy: "0.35em", class: "name" }, cut(wide ? `${lane.title}  ${lane.detail}` : lane.title)));
    }
  }
  const cut = (text) => {
    const most = Math.floor((left - 6) / 6.1);
    return text.length > most ? `${text.slice(0, most - 1)}…` : text;
  };

  function drawLane(plot, spans, y, perTick) {
    const paths = {}, ends = {}, labels = [], cuts = [];
    for (let i = 0; i < spans.length; i += STRIDE) {
      const start = spans[i + 4], stop = start + spans[i + 5];
      if (stop < from || start > to) continue;
      const op = OPS[Math.abs(spans[i])];
      const kind = op[0] === "R" && op !== "REDUCE" ? "R" : op === "SA" || op === "SG" ? "S" : op;
      const thin = kind === "R" || kind === "S";
      const x = left + (start - from) * perTick;
      let wide = Math.max((stop - start) * perTick, 0.4);
      // What ends within a third of a pixel of the last one drawn in its colour would not be seen: leave it out.
      if (ends[kind] !== undefined && x + wide - ends[kind] < 0.34) continue;
      ends[kind] = x + wide;
      if (wide > 3) wide -= 0.6;
      const tall = thin ? height * 0.4 : height, at = thin ? y + height * 0.3 : y;
      paths[kind] = (paths[kind] || "") + `M${x.toFixed(1)} ${at.toFixed(1)}h${wide.toFixed(2)}v${tall.toFixed(1)}h-${wide.toFixed(2)}z`;
      if (!thin && height > 12 && kind.length === 1) labels.push([x + wide / 2, kind, spans[i + 3], wide]);
      if (spans[i] < 0) cuts.push([x, wide]);
    }
    for (const kind of CLASSES) if (paths[kind]) plot.append(make("path", { d: paths[kind], class: `op-${kind}` }));
    // All labels of a kind or none: a lane with some of them missing looks as if it meant something.
    const needed = 4 + 6.4 * digits;
    const shown = ["F", "B"].filter((kind) => {
      const widths = labels.filter((label) => label[1] === kind).map((label) => label[3]).sort((one, two) => one - two);
      return widths.length && widths[Math.floor(widths.length / 2)] >= needed;
    });
    for (const [x, kind, text, wide] of labels) if (shown.includes(kind) && wide > 0.7 * needed) plot.append(make("text", { x, y: y + height / 2, dy: "0.35em", class: `on-${kind}` }, text));
    for (const [x, wide] of cuts) plot.append(make("rect", { x, y: y + 1, width: Math.max(wide, 3), height: height - 2, class: "cut" }));
  }

  function axis(group, width, total, perTick) {
    const rough = ((to - from) * TICK) / Math.max(3, Math.floor((width - left) / 110));
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough * 0.999);
    const big = to * TICK;
    const [unit, times] = big >= 1 ? ["s", 1] : big >= 1e-3 ? ["ms", 1e3] : ["us", 1e6];
    for (let number = Math.ceil((from * TICK) / step - 1e-9); number * step <= to * TICK * (1 + 1e-9); number++) {
      const x = left + ((number * step) / TICK - from) * perTick;
      group.append(make("line", { x1: x, x2: x, y1: TITLE - 6, y2: total - AXIS + 2, class: "grid" }));
      group.append(make("text", { x, y: total - 6, class: "middle" }, `${+(number * step * times).toPrecision(6)} ${unit}`));
    }
  }

  function under(event) {
    const box = drawn.svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * drawn.width, y = ((event.clientY - box.top) / box.height) * drawn.total;
    const number = Math.floor(y / (chartHeight + 10)), inside = y - number * (chartHeight + 10) - TITLE;
    const index = Math.floor(inside / (height + gap));
    return { time: from + (x - left) / scale(drawn.width), x, chart: charts[number], index: inside < 0 ? -1 : index };
  }

  function describe(chart, index, time) {
    const spans = chart.lanes[index], slack = 1.5 / scale(drawn.width);
    let best = -1, distance = slack;
    for (let i = 0; i < spans.length; i += STRIDE) {
      const away = Math.max(spans[i + 4] - time, time - spans[i + 4] - spans[i + 5], 0);
      if (away < distance || (away === 0 && distance === 0)) { best = i; distance = away; }
    }
    if (best < 0) return `rank ${lanes[index].rank}: idle`;
    const [number, pipeline, stage, microbatch, start, duration, actions] = spans.slice(best, best + STRIDE);
    const op = OPS[Math.abs(number)];
    const name = actions > 1 ? `${actions} actions, mostly ${WORDS[op]}` : `${actionText(op, pipeline, stage, microbatch)}  ${WORDS[op]}`;
    const length = number < 0 ? "never ended" : seconds(duration * TICK);
    return `rank ${lanes[index].rank}  ${name}\nstarts at ${seconds(start * TICK)}, ${number < 0 ? length : "takes " + length}`;
  }

  function show(first, last) {
    const least = end / 5000, span = Math.min(end, Math.max(least, last - first));
    from = Math.max(0, Math.min(first, end - span));
    to = from + span;
    draw();
  }
  const zoom = (factor, around) => show(around - (around - from) * factor, around + (to - around) * factor);
  const pan = (share) => show(from + (to - from) * share, to + (to - from) * share);

  let anchor = null, mark = null;
  place.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.target.tagName === "BUTTON") return;
    const at = under(event);
    if (at.x < left) return;
    anchor = at;
    mark = make("rect", { y: 0, height: "100%", class: "select", x: at.x, width: 0 });
    drawn.svg.append(mark);
    place.setPointerCapture(event.pointerId);
  });
  place.addEventListener("pointermove", (event) => {
    const at = under(event);
    if (anchor) {
      mark.setAttribute("x", Math.min(anchor.x, at.x));
      mark.setAttribute("width", Math.abs(at.x - anchor.x));
    }
    if (at.chart && at.index >= 0 && at.index < lanes.length && at.x >= left) showTip(describe(at.chart, at.index, at.time), event.clientX, event.clientY);
    else hideTip();
  });
  const release = (event) => {
    if (!anchor) return;
    const first = anchor, last = under(event);
    anchor = null;
    mark.remove();
    if (event.type === "pointerup" && Math.abs(last.x - first.x) > 5) show(Math.min(first.time, last.time), Math.max(first.time, last.time));
  };
  place.addEventListener("pointerup", release);
  place.addEventListener("pointercancel", release);
  place.addEventListener("pointerleave", hideTip);
  place.addEventListener("dblclick", () => show(0, end));
  place.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, under(event).time);
    else if (event.deltaX && to - from < end) pan(event.deltaX / 1000);
    else return;
    event.preventDefault();
  }, { passive: false });
  place.addEventListener("keydown", (event) => {
    const middle = (from + to) / 2;
    const todo = {
      ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.7, middle), "-": () => zoom(1.4, middle), 0: () => show(0, end),
    }[event.key];
    if (todo && !event.ctrlKey && !event.metaKey) { todo(); event.preventDefault(); }
  });

  const toolbar = document.createElement("div");
  toolbar.className = "toolbar";
  for (const [text, label, todo] of [
    ["+", "zoom in", () => zoom(0.6, (from + to) / 2)],
    ["−", "zoom out", () => zoom(1.6, (from + to) / 2)],
    ["all", "show the whole step", () => show(0, end)],
  ]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.title = label;
    button.setAttribute("aria-label", label);
    button.addEventListener("click", todo);
    toolbar.append(button);
  }
  place.append(toolbar);
  draw();
  addEventListener("resize", draw);
  addEventListener("beforeprint", draw);
})();
