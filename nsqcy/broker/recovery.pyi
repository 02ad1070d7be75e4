from nsqcy.broker.topic import Topic

class Recovery:
    def __new__(cls, topic: Topic) -> Recovery: ...
