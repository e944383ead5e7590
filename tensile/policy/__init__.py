"""Who may run where: what becomes of pods before they are scheduled, where they fit, and when they have to move."""
