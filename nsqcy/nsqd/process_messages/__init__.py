"""The messages between the processes of one nsqd: each is one class with its fields and its action.
Protocols declare the parts of a process that an action uses; nothing here imports these parts."""
