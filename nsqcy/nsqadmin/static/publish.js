// Keeps the fields of the publish form when the page is loaded again after a publish, so that the
// next message can be a similar one.

export function keepDraft(main) {
  const form = main.querySelector("#publish form");
  if (!form) return;
  const saved = sessionStorage.getItem(form.action);
  sessionStorage.removeItem(form.action);
  if (saved && new URLSearchParams(location.search).has("published")) {
    for (const [name, value] of JSON.parse(saved)) form.elements[name].value = value;
  }
  form.addEventListener("submit", () => {
    try {
      sessionStorage.setItem(form.action, JSON.stringify([...new FormData(form)]));
    } catch {
      // a very long body exceeds the browser's limit
    }
  });
}
