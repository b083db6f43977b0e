"""What a port owes to browsers that send HTTP credentials of their own accord (docs/adr/0070)."""

from trainshed.httpd.messages import Message, Scope, Send


def keeps_credentials(scope: Scope, send: Send) -> Send:
    """Return `send`, with 403 in place of a 401 to a browser that has sent the console's credentials.

    Browsers forget them at any 401 of the port, so a link to the API would sign their owner out. A challenge
    for such credentials stays as it is."""
    if not dict(scope["headers"]).get(b"authorization", b"").lower().startswith(b"basic "):
        return send

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 401:
            asked = dict(message.get("headers", ())).get(b"www-authenticate", b"")
            if not asked.startswith(b"Basic"):
                message = {**message, "status": 403}
        await send(message)

    return sent
