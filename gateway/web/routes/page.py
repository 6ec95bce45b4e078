"""The page at `/`: what this server is, and its links."""

from html import escape

_INDEX_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Baton: {model}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 42rem; margin: 3rem auto; padding: 0 1rem; }}
pre {{ background: #8881; padding: .8rem; overflow-x: auto; }} code {{ font-size: .9em; }}
:root {{ color-scheme: light dark; }}
</style></head>
<body>
<h1>Baton</h1>
<p>Serves <strong>{model}</strong> with prefill and decode split into two services. State: {stage}.</p>
<ul>
<li><a href="/docs">/docs</a>: every endpoint, from <a href="/openapi.json">/openapi.json</a></li>
<li><a href="/v1/models">/v1/models</a>: the model</li>
<li><code>POST /v1/chat/completions</code>, <code>POST /v1/completions</code>, <code>POST /v1/responses</code>: as in
OpenAI's API</li>
<li><code>POST /v1/messages</code>: as in Anthropic's API</li>
<li><a href="/health">/health</a> and <a href="/ready">/ready</a>: 200 when requests are served</li>
<li><a href="/stats">/stats</a>: what the workers say of themselves</li>
<li><a href="/metrics">/metrics</a>: figures for Prometheus</li>
</ul>
<pre>curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'</pre>
</body></html>
"""


def page(model: str, stage: str, url: str) -> str:
    """Returns the page as HTML; `stage` is the server's state, `url` its own address."""
    return _INDEX_PAGE.format(model=escape(model), stage=escape(stage), url=escape(url))
