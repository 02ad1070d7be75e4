from typing import final

@final
class Discarded: ...
