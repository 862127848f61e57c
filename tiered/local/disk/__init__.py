"""The ground floor: effects on the disk, the lock, the bounded open files, and the small files of a log directory."""
