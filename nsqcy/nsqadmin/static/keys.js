// Keyboard shortcuts: "/" focuses the search, arrows move between rows.

const STEPS = { ArrowDown: 1, ArrowUp: -1 };

export function readKeys(page) {
  page.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
    const isTyping = event.target.matches("input, textarea, select");
    if (event.key === "/" && !isTyping) focus(event, page.querySelector("input[type=search]"));
    else if (event.key in STEPS) step(event, STEPS[event.key], isTyping);
  });
}

function step(event, by, isTyping) {
  const row = event.target.closest("tbody tr");
  if (!row && !(isTyping && event.target.type === "search" && by > 0)) return;
  const links = [...document.querySelectorAll("tbody tr:not([hidden]) th a:not(.button)")].filter(
    (link) => link.getClientRects().length, // folded rows are skipped
  );
  const here = row ? links.findIndex((link) => row.contains(link)) : -1;
  focus(event, links[here + by] ?? (by < 0 ? document.querySelector("input[type=search]") : null));
}

function focus(event, element) {
  if (!element) return;
  event.preventDefault();
  element.focus();
  element.select?.();
}
