"""The field: every defense at three strengths, what attackers read, and what accuracy is left."""

from keyhole_studies.field.grid import read_field

STUDY = read_field()
