// Functions that find elements and check their types.
"use strict";

/**
 * Return the first element that matches a selector; null if it does not exist or has another type.
 * @template {Element} T
 * @param {string} selector
 * @param {new () => T} kind
 * @param {ParentNode} [root] the subtree to search
 * @returns {T | null}
 */
const pick = (selector, kind, root = document) => {
  const element = root.querySelector(selector);
  return element instanceof kind ? element : null;
};

/**
 * Return the first element that matches a selector. Throws an Error if it does not exist or has another type.
 * @template {Element} T
 * @param {string} selector
 * @param {new () => T} kind
 * @param {ParentNode} [root] the subtree to search
 * @returns {T}
 */
const need = (selector, kind, root = document) => {
  const element = pick(selector, kind, root);
  if (!element) throw new Error(`The page has no ${kind.name} ${selector}.`);
  return element;
};

/**
 * Return all elements of a type that match a selector, in document order.
 * @template {Element} T
 * @param {string} selector
 * @param {new () => T} kind
 * @param {ParentNode} [root] the subtree to search
 * @returns {T[]}
 */
const pickAll = (selector, kind, root = document) =>
  [...root.querySelectorAll(selector)].flatMap((element) =>
    element instanceof kind ? [element] : [],
  );

/**
 * Return the innermost element that matches a selector and contains the target of an event; null if it does not
 * exist or has another type.
 * @template {Element} T
 * @param {Event} event
 * @param {string} selector
 * @param {new () => T} kind
 * @returns {T | null}
 */
const closest = (event, selector, kind) => {
  const element = event.target instanceof Element ? event.target.closest(selector) : null;
  return element instanceof kind ? element : null;
};

/**
 * Create an element from HTML. The HTML must come from the service or from a script of the console (XSS).
 * @param {string} html
 * @returns {HTMLElement}
 */
const fromHtml = (html) => {
  const box = document.createElement("template");
  box.innerHTML = html;
  const element = box.content.firstElementChild;
  if (!(element instanceof HTMLElement)) throw new Error(`No element: ${html}`);
  return element;
};
