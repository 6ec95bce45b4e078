"""Serves /openapi.json, and /docs, a page that shows it without loading anything from other servers."""

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from gateway.web.endpoint import Endpoint
from gateway.web.routes.openapi import OpenAPI, ServerLimits
from gateway.web.serving import Serving, reply

_DOCS_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Baton: endpoints</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 3rem auto; padding: 0 1rem; }
pre { background: #8881; padding: .8rem; overflow-x: auto; } code { font-size: .9em; }
summary { cursor: pointer; padding: .3rem 0; } summary b { display: inline-block; min-width: 4.5rem; }
table { border-collapse: collapse; } td { vertical-align: top; padding: .15rem .8rem .15rem 0; }
details { border-bottom: 1px solid #8883; } details details { margin-left: 1rem; border: 0; }
:root { color-scheme: light dark; }
</style></head>
<body>
<h1>Endpoints</h1>
<p id="about">Reading <a href="openapi.json">openapi.json</a> …</p>
<main></main>
<script>
const make = (tag, text, ...inside) => {
  const one = document.createElement(tag);
  (text || "").split("`").forEach((part, place) => one.append(place % 2 ? make("code", part) : part));
  one.append(...inside);
  return one;
};
const nameOf = ref => ref.split("/").pop();
const words = schema => {
  if (!schema) return "anything";
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.enum) return schema.enum.map(value => JSON.stringify(value)).join(" | ");
  if (schema.anyOf) return [...new Set(schema.anyOf.map(words))].join(" | ");
  const bounds = ["minimum", "exclusiveMinimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern"]
    .filter(name => name in schema).map(name => name + " " + schema[name]).join(", ");
  const kind = schema.type === "array" ? "list of " + words(schema.items) : schema.type || "anything";
  return kind + (bounds ? " (" + bounds + ")" : "");
};
const table = schema => {
  const required = new Set(schema.required || []);
  const rows = Object.entries(schema.properties || {}).map(([name, one]) =>
    make("tr", "", make("td", "", make("code", name + (required.has(name) ? " *" : ""))), make("td", words(one))));
  return rows.length ? make("table", "", ...rows) : make("p", words(schema));
};
const refs = (schema, found) => {
  for (const [key, value] of Object.entries(schema && typeof schema === "object" ? schema : {}))
    key === "$ref" ? found.add(nameOf(value)) : refs(value, found);
  return found;
};
const shown = (title, schema, all) => {
  const parts = [make("summary", title)];
  for (const one of schema.anyOf || [schema]) {
    const whole = one.$ref ? all[nameOf(one.$ref)] : one;
    parts.push(make("p", whole.description), table(whole));
  }
  const seen = new Set(), open = [...refs(schema, new Set())];
  while (open.length) {
    const name = open.pop();
    if (seen.has(name)) continue;
    seen.add(name);
    open.push(...refs(all[name], new Set()));
  }
  for (const name of [...seen].sort())
    parts.push(make("details", "", make("summary", name), make("p", all[name].description), table(all[name])));
  return make("details", "", ...parts);
};
const eventOf = ({properties: {data}}) => (data.anyOf ? data.anyOf[0] : data).contentSchema;
const main = async () => {
  const api = await (await fetch("openapi.json")).json(), all = api.components.schemas;
  document.getElementById("about").replaceChildren(make("span", api.info.description));
  for (const [path, methods] of Object.entries(api.paths))
    for (const [method, one] of Object.entries(methods)) {
      const head = make("summary", "", make("b", method.toUpperCase()), make("code", path), " " + one.summary);
      const body = one.requestBody?.content["application/json"].schema;
      const parts = body ? [shown("body", body, all)] : [];
      for (const [status, answer] of Object.entries(one.responses))
        for (const [media, given] of Object.entries(answer.content))
          parts.push(shown(status + " " + media, given.itemSchema ? eventOf(given.itemSchema) : given.schema, all));
      document.querySelector("main").append(make("details", "", head, ...parts));
    }
};
main().catch(error => { document.getElementById("about").textContent = "openapi.json cannot be read: " + error; });
</script>
</body></html>
"""


def endpoints(serving: Serving, described: list[Endpoint]) -> list[Endpoint]:
    gateway = serving.gateway
    api = OpenAPI(described)

    async def openapi(request: Request) -> Response:
        admission = gateway.admission
        models = (*gateway.names, *(name for name in gateway.workers.adapters() if name not in gateway.names))
        limits = ServerLimits(models, samples=gateway.config.max_samples)
        if admission is not None:
            limits = ServerLimits(
                models, admission.tokenizer.vocabulary, admission.window.tokens(), gateway.config.max_samples
            )
        left_out = "texts" if gateway.workers.pooling() is None else "chats"
        return reply(api.document(limits, left_out))

    async def docs(request: Request) -> Response:
        return HTMLResponse(_DOCS_PAGE)

    return [
        Endpoint("GET", "/openapi.json", openapi, "Describes this API.", shown=False),
        Endpoint("GET", "/docs", docs, "Shows this API.", media="text/html", shown=False),
    ]
