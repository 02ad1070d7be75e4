// Search: immediately hides rows that do not match, then fetches matches from the other pages of
// the list.

const PAUSE = 250; // ms without a key press until fetching

export function searchAsTyped(main, page) {
  const field = main.querySelector("form.search input[type=search]");
  if (!field) return;
  let timer;

  function filter() {
    const wanted = field.value.toLowerCase();
    for (const row of main.querySelectorAll("tbody tr")) {
      row.hidden = !(row.dataset.key ?? "").toLowerCase().includes(wanted);
    }
  }

  function search() {
    const url = new URL(location.href);
    url.searchParams.delete("page");
    if (field.value) url.searchParams.set("q", field.value);
    else url.searchParams.delete("q");
    history.replaceState(null, "", url);
    page.refresh();
  }

  field.addEventListener("input", () => {
    filter();
    clearTimeout(timer);
    timer = setTimeout(search, PAUSE);
  });
  field.form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    search();
  });
}
