// Values that the server's functions have written (see ../test_scripts.py), and figures as the page takes them.
import { readFileSync } from "node:fs";
import { env } from "node:process";
import { given } from "../../../visualize/web/assets/dom.js";
import { inflateFigure } from "../../../visualize/web/assets/figures.js";

export const cases = JSON.parse(readFileSync(env.TILESCOPE_CASES));

globalThis.document = { body: { classList: { contains: () => false } } }; // light
Object.assign(given, cases.given);

export const open = inflateFigure;
