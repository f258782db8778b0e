"""The URLs of the dashboard: `path("jobs/", include("bide.contrib.django.urls"))`."""

from django.urls import re_path

from bide.contrib.django.dashboard import dashboard

app_name = "bide"
urlpatterns = [re_path(r"^(?P<path>.*)$", dashboard, name="dashboard")]
