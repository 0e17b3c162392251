"""A server that speaks OpenEnv's protocol: a session for each WebSocket, in which a number is guessed."""

import json
import random
from contextlib import contextmanager
from threading import Thread


def answer(session, message):
    data = message["data"]
    if message["type"] == "reset":
        session["number"] = random.Random(data["seed"]).randint(1, 7)
        return {"observation": {"text": f"{data['range']}: "}, "reward": None, "done": False}
    guess = int(data["message"])
    hint = "higher" if guess < session["number"] else "lower"
    found = guess == session["number"]
    return {"observation": {"text": hint}, "reward": float(found), "done": found}


def serve(socket, sessions):
    session = {}
    sessions.append(session)
    for raw in socket:
        try:
            found = {"type": "observation", "data": answer(session, json.loads(raw))}
        except Exception as error:
            found = {"type": "error", "data": {"message": str(error), "code": "EXECUTION_ERROR"}}
        socket.send(json.dumps(found))
    session["ended"] = True


@contextmanager
def running():
    """Yields the address of a server, and its sessions."""
    from websockets.sync.server import serve as listen

    sessions = []
    with listen(lambda socket: serve(socket, sessions), "127.0.0.1", 0) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}", sessions
        server.shutdown()
    thread.join()
