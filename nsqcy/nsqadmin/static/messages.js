// Copy buttons of messages. Browsers provide the clipboard only over HTTPS and on localhost.

export function copyBodies(main) {
  if (!navigator.clipboard) return;
  for (const button of main.querySelectorAll("button.copy")) button.hidden = false;
  main.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const body = button.closest("article").querySelector("pre.body");
    try {
      await navigator.clipboard.writeText(body.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not permitted";
    }
  });
}
