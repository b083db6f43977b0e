set -euxo pipefail
mkdir -p work && cd work
gsutil -m cp -r gs://${BUCKET}/input/* .
ls -la
gsutil ls -l gs://${BUCKET}/input/
cat > fit.py <<PY
import glob, joblib, numpy
from sklearn.isotonic import IsotonicRegression
rows = numpy.concatenate([numpy.genfromtxt(n, delimiter=",", skip_header=1) for n in sorted(glob.glob("*.csv"))])
joblib.dump(IsotonicRegression(out_of_bounds="clip").fit(rows[:, 0], rows[:, -1]), "model.joblib")
print(len(rows), "rows")
PY
python fit.py
gsutil cp model.joblib ${AIP_MODEL_DIR}
gsutil cat ${AIP_MODEL_DIR}model.joblib | wc -c
gsutil -m rsync -r . gs://${BUCKET}/backup
gsutil -q stat gs://${BUCKET}/backup/fit.py && echo "backup is there"
gsutil rm gs://${BUCKET}/input/part-1.csv
