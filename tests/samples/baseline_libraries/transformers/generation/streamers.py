class BaseStreamer:
    pass
