"""What holds for every test: no property is judged by how long an example took, which depends on who else works."""

import hypothesis

hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
