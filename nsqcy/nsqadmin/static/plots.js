// Readouts of plot values by pointer or arrow keys. The server draws the plots and attaches the
// values to each line.

const STEPS = { ArrowLeft: -1, ArrowRight: 1 };
const TIMES = { h: 3600, m: 60, s: 1, ms: 1e-3, µs: 1e-6 };

export function readPlots(main) {
  let plot; // the plot under the pointer
  let place; // index of the value, from the left

  function show(wanted, index) {
    if (plot && plot !== wanted) hide();
    plot = wanted;
    const lines = valuesOf(plot);
    place = Math.min(Math.max(index, 0), lines[0].length - 1);
    const outputs = plot.querySelectorAll("output");
    lines.forEach((values, line) => {
      const output = outputs[line];
      output.dataset.last ??= output.textContent;
      output.textContent = shown(values[place], plot.dataset.unit);
    });
    const cursor = plot.querySelector(".canvas i");
    cursor.style.left = `${(100 * place) / Math.max(1, lines[0].length - 1)}%`;
    cursor.style.display = "block";
    plot.querySelector("time").textContent = timeOf(plot, place);
  }

  function hide() {
    if (!plot) return;
    for (const output of plot.querySelectorAll("output")) {
      output.textContent = output.dataset.last ?? output.textContent;
      delete output.dataset.last;
    }
    plot.querySelector(".canvas i").style.display = "none";
    plot.querySelector("time").textContent = "";
    plot = undefined;
  }

  main.addEventListener("pointermove", (event) => {
    const canvas = event.target.closest(".canvas");
    if (!canvas) return;
    const wanted = canvas.closest(".plot");
    const box = canvas.getBoundingClientRect();
    const last = valuesOf(wanted)[0].length - 1;
    show(wanted, Math.round(((event.clientX - box.left) / box.width) * last));
  });
  main.addEventListener("pointerout", (event) => {
    if (plot && !plot.contains(event.relatedTarget)) hide();
  });
  main.addEventListener("keydown", (event) => {
    const wanted = event.target.closest(".plot");
    if (!wanted) return;
    if (event.key in STEPS) {
      const end = valuesOf(wanted)[0].length - 1;
      show(wanted, plot === wanted ? place + STEPS[event.key] : end);
    } else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  });
  main.addEventListener("focusout", hide);
  // An update has replaced the plot: refresh the readout.
  main.addEventListener("fresh", () => plot?.isConnected && show(plot, place));
}

function valuesOf(plot) {
  const lines = [...plot.querySelectorAll("path[data-values]")];
  return lines.map((line) => line.dataset.values.split(","));
}

function timeOf(plot, place) {
  const { start, step } = plot.dataset;
  const time = new Date((Number(start) + (place + 0.5) * Number(step)) * 1000);
  plot.querySelector("time").dateTime = time.toISOString();
  return time.toLocaleTimeString();
}

// Formats values as the server does.
function shown(text, unit) {
  if (text === "") return "–";
  const value = Number(text);
  if (unit === "time") return duration(value);
  return amount(value) + (unit === "rate" ? "/s" : "");
}

function amount(value) {
  const digits = value >= 100 ? 0 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

function duration(seconds) {
  if (!seconds) return "0s";
  const [name, unit] = Object.entries(TIMES).find(([, each]) => seconds >= each) ?? ["ns", 1e-9];
  return amount(seconds / unit) + name;
}
