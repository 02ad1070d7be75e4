// Updates an element to match another one with minimal changes. Equal parts stay, so that focus,
// selection, open details and scroll positions survive.

// Attributes that users or scripts change; updates keep them.
const KEPT = { details: ["open", "hidden"], button: ["hidden"], input: ["value"], "*": ["style"] };

export function morph(old, fresh) {
  takeAttributes(old, fresh);
  if (old.localName !== "textarea") takeChildren(old, fresh); // its text is the user's
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
    keyed.delete(key(wanted)); // further elements with the same key count as new
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

// Rows are identified by name, other elements by id.
const key = (node) => node.dataset?.key ?? (node.id || undefined);
