// Elements, looked up with what kind they are of.
"use strict";

/**
 * Return the first element that a selector matches; null if there is none of that kind.
 * @template {Element} T
 * @param {string} selector
 * @param {new () => T} kind
 * @param {ParentNode} [root] below which it lies
 * @returns {T | null}
 */
const pick = (selector, kind, root = document) => {
  const element = root.querySelector(selector);
  return element instanceof kind ? element : null;
};

/**
 * Return the first element that a selector matches. Throws an Error if there is none of that kind.
 * @template {Element} T
 * @param {string} selector
 * @param {new () => T} kind
 * @param {ParentNode} [root] below which it lies
 * @returns {T}
 */
const need = (selector, kind, root = document) => {
  const element = pick(selector, kind, root);
  if (!element) throw new Error(`The page has no ${kind.name} ${selector}.`);
  return element;
};

/**
 * Return all elements of a kind that a selector matches, in their order.
 * @template {Element} T
 * @param {string} selector
 * @param {new () => T} kind
 * @param {ParentNode} [root] below which they lie
 * @returns {T[]}
 */
const pickAll = (selector, kind, root = document) =>
  [...root.querySelectorAll(selector)].flatMap((element) =>
    element instanceof kind ? [element] : [],
  );

/**
 * Return the innermost element that a selector matches and in which an event happened; null if there is none
 * of that kind.
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
 * Return a new element from its HTML, which has to come from the service or this script.
 * @param {string} html
 * @returns {HTMLElement}
 */
const made = (html) => {
  const box = document.createElement("template");
  box.innerHTML = html;
  const element = box.content.firstElementChild;
  if (!(element instanceof HTMLElement)) throw new Error(`No element: ${html}`);
  return element;
};
