// Plots: a crosshair and readouts shared by all plots of a page, and zoom by dragging. The server
// draws the plots and attaches the values to each line. All plots of a page have the same times.
//
// Pointer: move to read values, drag to zoom, double-click to reset. Keys: arrows move the
// crosshair, + and - zoom around it, Escape hides it, and then resets the zoom.

const STEPS = { ArrowLeft: -1, ArrowRight: 1 };
const ZOOMS = { "+": 0.5, "=": 0.5, "-": 2 };
const TIMES = { h: 3600, m: 60, s: 1, ms: 1e-3, µs: 1e-6 };
const WIDTH = 720; // of a plot's view box
const MIN_DRAG = 8; // pixels; a shorter drag is a click
const MIN_POINTS = 4; // of a zoomed plot

export function readPlots(main) {
  let place; // index of the value under the crosshair; undefined if it is hidden
  let zoom; // [begin, end] in seconds since the epoch; undefined if not zoomed
  let drag; // { canvas, begin }: a drag that has begun

  const plots = () => [...main.querySelectorAll(".plot")];

  // Crosshair

  function show(index) {
    const all = plots();
    if (!all.length) return;
    const [from, to] = shownPart(all[0]);
    place = Math.min(Math.max(index, Math.ceil(from)), Math.floor(to));
    for (const plot of all) read(plot, (100 * (place - from)) / Math.max(1e-9, to - from));
  }

  function read(plot, percent) {
    const outputs = plot.querySelectorAll("output");
    valuesOf(plot).forEach((values, line) => {
      const output = outputs[line];
      output.dataset.last ??= output.textContent;
      output.textContent = shown(values[place] ?? "", plot.dataset.unit);
    });
    const cursor = plot.querySelector(".cursor");
    cursor.style.left = `${percent}%`;
    cursor.style.display = "block";
    const time = plot.querySelector("time");
    const at = secondsAt(plot, place + 0.5);
    time.dateTime = new Date(at * 1000).toISOString();
    time.textContent = moment(at);
  }

  function hide() {
    place = undefined;
    for (const plot of plots()) {
      for (const output of plot.querySelectorAll("output")) {
        output.textContent = output.dataset.last ?? output.textContent;
        delete output.dataset.last;
      }
      plot.querySelector(".cursor").style.display = "none";
      plot.querySelector("time").textContent = "";
    }
  }

  // Zoom

  // Returns the first and the last visible index, which are fractions if the plot is zoomed.
  function shownPart(plot) {
    const last = countOf(plot) - 1;
    if (!zoom) return [0, last];
    const { start, step } = plot.dataset;
    const part = zoom.map((each) => (each - Number(start)) / Number(step) - 0.5);
    return [Math.max(0, Math.min(part[0], last)), Math.max(0, Math.min(part[1], last))];
  }

  function zoomTo(plot, from, to) {
    const last = countOf(plot) - 1;
    const span = Math.max(to - from, MIN_POINTS);
    if (span >= last) {
      zoom = undefined;
    } else {
      const begin = Math.min(Math.max(0, from), last - span);
      zoom = [secondsAt(plot, begin + 0.5), secondsAt(plot, begin + span + 0.5)];
    }
    draw();
  }

  function draw() {
    for (const plot of plots()) {
      const last = countOf(plot) - 1;
      const [from, to] = shownPart(plot);
      if (zoom && to - from < 1) zoom = undefined; // the part has left the plot
      const place = (index) => Math.round((100 * index * WIDTH) / Math.max(1, last)) / 100;
      const box = zoom ? `${place(from)} -2 ${place(to - from)} 164` : `0 -2 ${WIDTH} 164`;
      plot.querySelector("svg").setAttribute("viewBox", box);
      plot.classList.toggle("zoomed", Boolean(zoom));
      if (zoom) label(plot, from, to);
      else restoreLabels(plot);
    }
    const button = main.querySelector(".unzoom");
    if (button) button.hidden = !zoom;
  }

  function label(plot, from, to) {
    const labels = [...plot.querySelectorAll(".x span")];
    labels.forEach((each, index) => {
      each.dataset.last ??= each.textContent;
      const at = from + ((to - from) * index) / (labels.length - 1);
      each.textContent = moment(secondsAt(plot, at + 0.5)).slice(11, 19);
    });
  }

  function restoreLabels(plot) {
    for (const each of plot.querySelectorAll(".x span")) {
      each.textContent = each.dataset.last ?? each.textContent;
      delete each.dataset.last;
    }
  }

  function unzoom() {
    zoom = undefined;
    draw();
  }

  // Returns the index at a pointer's position, as a fraction.
  function indexAt(canvas, x) {
    const box = canvas.getBoundingClientRect();
    const [from, to] = shownPart(canvas.closest(".plot"));
    const share = Math.min(Math.max((x - box.left) / box.width, 0), 1);
    return from + share * (to - from);
  }

  // Dragging

  function select(x) {
    const box = drag.canvas.getBoundingClientRect();
    const [left, right] = [drag.begin, x].sort((one, other) => one - other);
    const brush = drag.canvas.querySelector(".brush");
    brush.style.left = `${(100 * (left - box.left)) / box.width}%`;
    brush.style.width = `${(100 * (right - left)) / box.width}%`;
    brush.style.display = "block";
  }

  function endDrag() {
    if (drag) drag.canvas.querySelector(".brush").style.display = "none";
    drag = undefined;
  }

  main.addEventListener("pointerdown", (event) => {
    const canvas = event.target.closest(".canvas");
    if (!canvas || event.button) return;
    drag = { canvas, begin: event.clientX };
    canvas.setPointerCapture(event.pointerId);
  });
  main.addEventListener("pointermove", (event) => {
    const canvas = drag?.canvas ?? event.target.closest(".canvas");
    if (!canvas) return;
    show(Math.round(indexAt(canvas, event.clientX)));
    if (drag) select(event.clientX);
  });
  main.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const { canvas, begin } = drag;
    endDrag();
    if (Math.abs(event.clientX - begin) < MIN_DRAG) return;
    const ends = [begin, event.clientX].map((x) => indexAt(canvas, x));
    zoomTo(canvas.closest(".plot"), Math.min(...ends), Math.max(...ends));
  });
  main.addEventListener("pointercancel", endDrag);
  main.addEventListener("pointerout", (event) => {
    if (place !== undefined && !drag && !event.relatedTarget?.closest?.(".canvas")) hide();
  });
  main.addEventListener("dblclick", (event) => event.target.closest(".canvas") && unzoom());
  main.addEventListener("click", (event) => event.target.closest(".unzoom") && unzoom());

  main.addEventListener("keydown", (event) => {
    const plot = event.target.closest(".plot");
    if (!plot || event.ctrlKey || event.altKey || event.metaKey) return;
    const [from, to] = shownPart(plot);
    if (event.key in STEPS) show(place === undefined ? Math.floor(to) : place + STEPS[event.key]);
    else if (event.key in ZOOMS) {
      const half = ((to - from) * ZOOMS[event.key]) / 2;
      const middle = place ?? (from + to) / 2;
      zoomTo(plot, middle - half, middle + half);
      if (place !== undefined) show(place);
    } else if (event.key === "Escape") {
      if (place === undefined) unzoom();
      else hide();
    } else return;
    event.preventDefault();
  });
  main.addEventListener("focusout", () => place !== undefined && hide());
  // An update has replaced the plots: zoom and read them again.
  main.addEventListener("fresh", () => {
    if (zoom) draw();
    if (place !== undefined) show(place);
  });
}

function valuesOf(plot) {
  const lines = [...plot.querySelectorAll("path[data-values]")];
  return lines.map((line) => line.dataset.values.split(","));
}

const countOf = (plot) => valuesOf(plot)[0].length;

// Returns the time at an index; a value is the mean of its step, so its time is in the middle.
function secondsAt(plot, index) {
  const { start, step } = plot.dataset;
  return Number(start) + index * Number(step);
}

// Formats times and values as the server does.
function moment(seconds) {
  return `${new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

function shown(text, unit) {
  if (text === "") return "–";
  const value = Number(text);
  if (unit === "time") return duration(value);
  return amount(value) + (unit === "rate" ? "/s" : "");
}

function amount(value) {
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

function duration(seconds) {
  if (!seconds) return "0s";
  const [name, unit] = Object.entries(TIMES).find(([, each]) => seconds >= each) ?? ["ns", 1e-9];
  return amount(seconds / unit) + name;
}
