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
    const fresh = await ask(mine);
    if (mine !== request) return;
    if (fresh) show(fresh);
    tell(Boolean(fresh));
    plan(Math.max(EVERY, SHARE * (performance.now() - begun)));
  }

  function show(fresh) {
    morph(main, fresh);
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

// What is on the page now, whatever its status: it may say that the topic is gone. Undefined if
// nsqadmin does not answer; a proxy in front may do so instead.
async function ask(request) {
  const limit = setTimeout(() => request.abort(), LATE);
  try {
    const answer = await fetch(location.href, { signal: request.signal });
    // To where somebody has to log in, say: that is a page of its own.
    if (answer.redirected) location.reload();
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    return page.querySelector("main[data-live]") ?? undefined;
  } catch {
    return undefined;
  } finally {
    clearTimeout(limit);
  }
}
