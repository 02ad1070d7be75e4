// Shows the picked time, which is in UTC, in the browser's time zone too.

export function showLocalTime(main) {
  const field = main.querySelector('input[type="datetime-local"][name="at"]');
  if (!field) return;
  const output = field.form.querySelector("output.local");
  function show() {
    const time = new Date(`${field.value}Z`);
    output.textContent = Number.isNaN(time.getTime())
      ? ""
      : `${time.toLocaleString(undefined, { timeZoneName: "short" })} in your time zone`;
  }
  field.addEventListener("input", show);
  show();
}
