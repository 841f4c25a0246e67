"""The HTTP service: questions from the network to passages and answers. `bpr serve` starts it; extra `serve`.

settings: the limits. batching: questions of several requests in one search. engine: what a request becomes, without any
HTTP. metrics: what is counted. guard: what every request passes, before anything of it is believed. schemas and app:
the routes. server: sockets and signals. page/: what people see at `/`.

Nothing that comes in is a path, a URL or code; nothing is written. Only this room knows fastapi and uvicorn.
"""
