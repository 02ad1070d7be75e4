from typing import final

@final
class PendingAcks: ...
