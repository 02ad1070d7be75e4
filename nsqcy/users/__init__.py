"""Who there is, by a file of users, and what each of them may do: for every daemon alike."""
