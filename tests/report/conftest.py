import pytest


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without their drawings, which take longer than all the rest."""
    monkeypatch.setattr("sfctr.report.html.draw", lambda picture: f'<svg aria-label="{picture.title}"></svg>')
