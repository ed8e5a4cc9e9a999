"""The trained models of examples/, for tests that ask them questions."""

from recall.train import COURSE as RECALL
from recall.train import Course
from state_recall.train import COURSE as STATE_RECALL

COURSES: dict[str, Course] = {course.folder.name: course for course in (RECALL, STATE_RECALL)}
