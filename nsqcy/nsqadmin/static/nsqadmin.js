// Entry point of the scripts. All pages work without them.

import { chooseColumns } from "./columns.js";
import { readKeys } from "./keys.js";
import { keepLive } from "./live.js";
import { copyBodies } from "./messages.js";
import { readPlots } from "./plots.js";
import { keepDraft } from "./publish.js";
import { searchAsTyped } from "./search.js";
import { showLocalTime } from "./seek.js";

const main = document.querySelector("main");
chooseColumns(main);
copyBodies(main);
keepDraft(main);
showLocalTime(main);
readPlots(main);
readKeys(document);
if (main.hasAttribute("data-live")) {
  const page = keepLive(main, document.getElementById("live"));
  searchAsTyped(main, page);
}
