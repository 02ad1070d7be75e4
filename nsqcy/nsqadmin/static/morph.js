// Makes an element like another one with as few changes as there are: what is equal stays, and with
// it the focus, a selection, what is open and how far it is scrolled.

// What a user has changed, or a script: it is theirs.
const KEPT = { details: ["open"], input: ["value"], "*": ["style"] };

export function morph(old, fresh) {
  takeAttributes(old, fresh);
  takeChildren(old, fresh);
}

function takeAttributes(old, fresh) {
  const kept = [...(KEPT[old.localName] ?? []), ...KEPT["*"]];
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !kept.includes(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (!kept.includes(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

function takeChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.children) if (key(child)) keyed.set(key(child), child);
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const found = keyed.get(key(wanted)) ?? place;
    keyed.delete(key(wanted)); // of several of one name the others are new
    if (found && isAlike(found, wanted)) {
      if (found === place) place = place.nextSibling;
      else old.insertBefore(found, place);
      update(found, wanted);
    } else {
      old.insertBefore(document.importNode(wanted, true), place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function update(found, wanted) {
  if (found.nodeType === Node.ELEMENT_NODE) morph(found, wanted);
  else if (found.data !== wanted.data) found.data = wanted.data;
}

function isAlike(found, wanted) {
  return found.nodeName === wanted.nodeName && key(found) === key(wanted);
}

// A row is known by its name, an element by its id.
const key = (node) => node.dataset?.key ?? (node.id || undefined);
