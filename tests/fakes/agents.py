"""Programs that call the policy, for tests. Workers import this file by its path."""

import asyncio
import contextlib
import http.client
import json
import os
import random
import sys
import time
from urllib.parse import urlsplit

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}},
    },
}


def post(base_url, key, path, body, method="POST"):
    """Return the status and the JSON of a request, without any library."""
    where = urlsplit(base_url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    data = body if isinstance(body, (str, bytes)) else json.dumps(body)
    connection.request(method, where.path + path, data, {"Authorization": f"Bearer {key}"})
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read())


def ask(base_url, key, messages, **settings):
    status, reply = post(base_url, key, "/chat/completions", {"model": "x", "messages": messages, **settings})
    if status != 200:
        raise RuntimeError(reply["error"]["code"])
    return reply["choices"][0]["message"]


def talk(base_url, api_key, row):
    """Goes on for a number of turns that its row and its seed decide, and rewards what is written by its length."""
    messages = [{"role": "user", "content": f"go {row['prompt']}"}]
    total = 0
    for number in range(random.randrange(1, 4)):
        messages.append(ask(base_url, api_key, messages))
        total += len(messages[-1]["content"])
        messages.append({"role": "user", "content": f"<eos>more{number} "})
    if row.get("aside"):
        total += len(ask(base_url, api_key, [{"role": "system", "content": "judge"}, *messages])["content"])
    return total / 10


def never(row):
    """Makes no call."""
    return 1.0


def broken(base_url, api_key, row, how=None):
    """Fails in the way that its row names, after its first call."""
    if how == "never":
        return 1.0
    if how == "key":
        return post(base_url, "another", "/chat/completions", {"messages": []})[0]  # 401, and no call
    if how == "unread":
        nested = [{"role": "user", "content": [{"role": "user", "content": "go"}]}]
        raise RuntimeError(post(base_url, api_key, "/chat/completions", {"messages": nested})[0])
    if how == "junk":

        def is_refused(body, path="/chat/completions"):
            return post(base_url, api_key, path, body)[0] == 400

        for body in ("{", "[" * 100_000, "[]", {"messages": [{}]}, {"messages": [{"role": "user", "content": 3}]}):
            assert is_refused(body)
        status, error = post(base_url, api_key, "/responses", "{}")
        assert (status, "answers at /v1/chat/completions" in error["error"]["message"]) == (404, True)
        assert is_refused({"messages": "hi"})
        deep = "[" * 500 + "]" * 500
        function = f'{{"type": "function", "function": {{"name": "f", "x": {deep}}}}}'
        for text in ('"\\ud800"', f'"x"}}], "tools": [{function}], "y": [{{"z": 1'):
            assert is_refused(f'{{"messages": [{{"role": "user", "content": {text}}}]}}')
        messages = [{"role": "user", "content": "x"}]
        for more in ({"n": 2}, {"max_tokens": 0}, {"stop": [""]}, {"tools": [{}]}, {"messages": []}):
            assert is_refused({"messages": messages, **more})
        image = [{"type": "image_url", "image_url": {"url": "x"}}]
        assert is_refused({"messages": [{"role": "user", "content": image}]})
        assert is_refused({"reward": float("nan")}, "/reward")
    messages = [{"role": "user", "content": "go"}]
    if how == "long":
        ask(base_url, api_key, [{"role": "user", "content": "x" * 1_000_000}])
    ask(base_url, api_key, messages)
    if how == "raises":
        raise RuntimeError("it is broken")
    if how == "exits":
        sys.exit(3)
    if how == "dies":
        os._exit(4)
    if how == "hangs":
        time.sleep(3600)
    if how == "text":
        return "much"
    if how == "special":
        ask(base_url, api_key, [*messages, call("<eos>"), {"role": "tool", "content": "1", "tool_call_id": "a"}])
    while how == "many":
        ask(base_url, api_key, messages)
    if how == "posts":
        assert post(base_url, api_key, "/reward", {"reward": 0.25})[0] == 200
        return None
    return 0.5


def call(text):
    function = {"name": "f", "arguments": json.dumps({"x": text})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]}


def deadly(base_url, api_key, row):
    """Kills its own process once in a whole test, after its second call."""
    messages = [{"role": "user", "content": f"go {row['prompt']}"}]
    for number in range(3):
        messages.append(ask(base_url, api_key, messages))
        place = os.environ["ONCURVE_DEADLY"]
        if number == 1 and not os.path.exists(place):
            open(place, "w").close()
            os.kill(os.getpid(), 9)
        messages.append({"role": "user", "content": f"and {len(messages)}"})
    return float(sum(len(message["content"]) for message in messages))


def early(base_url, api_key, row):
    """Deadly, before its first call."""
    place = os.environ["ONCURVE_DEADLY"]
    if not os.path.exists(place):
        open(place, "w").close()
        os.kill(os.getpid(), 9)
    return deadly(base_url, api_key, row)


def forgetful(base_url, api_key, row):
    """Deadly, and says something else each time."""
    with open("/dev/urandom", "rb") as source:
        ask(base_url, api_key, [{"role": "user", "content": source.read(8).hex()}])
    return deadly(base_url, api_key, row)


async def together(base_url, api_key, row):
    """Makes calls at the same time, two of them the same."""

    def one(text):
        time.sleep(random.random() / 50)
        return ask(base_url, api_key, [{"role": "user", "content": text}])["content"]

    texts = await asyncio.gather(*(asyncio.to_thread(one, text) for text in ("a", "b", "b", "c")))
    ask(base_url, api_key, [{"role": "user", "content": "".join(sorted(texts))}])
    return float(len(texts[0]))


def with_client(base_url, api_key, row):
    """Adds by a tool with OpenAI's own client, streamed where the row says so."""
    from openai import BadRequestError, OpenAI

    client = OpenAI(base_url=base_url, api_key=api_key)
    assert [each.id for each in client.models.list()] == ["policy"]
    messages = [{"role": "user", "content": row["prompt"]}]
    settings = {"model": "gpt", "tools": [ADD], "temperature": 0.3, "max_tokens": 200}
    for _ in range(4):
        if row.get("stream"):
            with client.chat.completions.stream(messages=messages, **settings) as stream:
                choice = stream.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(messages=messages, **settings).choices[0]
        messages.append(choice.message)
        if choice.finish_reason != "tool_calls":
            break
        assert choice.message.content == "I add."
        for made in choice.message.tool_calls:
            given = json.loads(made.function.arguments)
            messages.append({"role": "tool", "tool_call_id": made.id, "content": str(given["x"] + given["y"])})
    with contextlib.suppress(BadRequestError):
        client.chat.completions.create(messages=messages, n=2, model="gpt")
        return None
    return float(choice.message.content.strip() == row["answer"])


async def with_agents(base_url, api_key, model, prompt, answer):
    """An agent of the OpenAI Agents SDK, whose tools are those of an MCP server."""
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
    from agents.mcp import MCPServerStdio
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=base_url, api_key=api_key)
    server = MCPServerStdio({"command": sys.executable, "args": [__file__, "serve"]}, client_session_timeout_seconds=60)
    async with server:
        agent = Agent(
            name="adder",
            instructions="Use the tool.",
            model=OpenAIChatCompletionsModel(model, client),
            model_settings=ModelSettings(temperature=0.0),
            mcp_servers=[server],
        )
        result = await Runner.run(agent, prompt)
    return float(result.final_output.strip() == answer)


def serve():
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("adder")

    @server.tool()
    def add(x: int, y: int) -> int:
        """Add two numbers."""
        return x + y

    server.run()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:  # a command
        row = json.loads(os.environ["ONCURVE_ROW"])
        reward = talk(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], row)
        sys.stdout.write(f"hello\n{reward}\n\n")
