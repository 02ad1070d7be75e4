// Keeps what is on a page as it is now: the page is asked for again every few seconds, while it is
// seen, and made like the answer. One request at a time, and rarely where answers take long.

import { morph } from "./morph.js";

const EVERY = 5000; // ms
const SHARE = 20; // an answer that takes 1 s is asked for every 20 s
const LATE = 30000; // ms after which it is not waited for any longer

export function keepLive(main, state) {
  let timer;
  let request; // the latest; what others are answered nobody wants any longer

  async function refresh() {
    clearTimeout(timer);
    request?.abort();
    const mine = (request = new AbortController());
    const begun = performance.now();
    const text = await ask(mine);
    if (mine !== request) return;
    if (text !== undefined) show(text);
    tell(text !== undefined);
    plan(Math.max(EVERY, SHARE * (performance.now() - begun)));
  }

  function show(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    morph(main, fresh.querySelector("main"));
    main.dispatchEvent(new Event("fresh"));
  }

  function tell(isLive) {
    const text = isLive ? "live" : "not live";
    state.hidden = false;
    if (state.textContent !== text) state.textContent = text; // what is new is read aloud
    state.classList.toggle("old", !isLive);
  }

  function plan(wait) {
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(refresh, wait);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer);
    else refresh();
  });
  tell(true);
  plan(EVERY);
  return { refresh };
}

// The page as it is now; undefined if it cannot be had.
async function ask(request) {
  const limit = setTimeout(() => request.abort(), LATE);
  try {
    const answer = await fetch(location.href, { signal: request.signal });
    // To where somebody has to log in, say: that is a page of its own.
    if (answer.redirected) location.reload();
    return answer.ok ? await answer.text() : undefined;
  } catch {
    return undefined;
  } finally {
    clearTimeout(limit);
  }
}
