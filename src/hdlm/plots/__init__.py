"""Pictures of schedules and layouts: PNG or SVG through matplotlib, or the terminal through rich."""
